"""The groups of commands, one noun a module. forgetting_assets/cli.py assembles them."""

"""What is injected into the pass: database, gateway, budget, flag, policy and clock.

Each is a Dagster resource that reads no memory on its own account. What the pass does with them
belongs in forgetting_assets.
"""

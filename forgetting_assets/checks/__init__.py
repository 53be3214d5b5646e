"""The asset checks. Zero episodic collapse comes first: it stands on every asset and blocks.

A check asks one named statement of sql/queries/invariant.sql for violations, keeps the result in
forgetting.invariant_results and fails with ids and reasons. A blocking check gates only inside one
run, so retention_proposals and archival_sweep verify inside their own transactions as well.
"""

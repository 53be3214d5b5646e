"""The store's verbs, one module a noun: thin Python over sql/queries, one transaction a call."""

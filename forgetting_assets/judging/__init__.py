"""Pure: from items to what the judge reads, and from its answers to typed verdicts. No I/O."""

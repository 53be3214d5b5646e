"""Whether the candidates and the judge may be believed. Here belong measures, never decisions."""

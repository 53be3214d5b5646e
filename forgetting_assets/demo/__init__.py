"""Invented data for the demo: three tenants, their memories and evidence, and a script.

Belongs here: memories and evidence that nobody ever had, the text-hash vectors they are stored
with, and the answers that the scripted judge gives about them. All of it was written by hand or
is generated from it, and the same reference day always gives the same records.

Must not be here: a real memory of anyone, and any claim that a model judged these. The answers are
part of the fixture; they say nothing about how well a judge decides. The dates in the texts fit a
reference day around 1 December 2026; any other day gives the same memories with other times.
"""

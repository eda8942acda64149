"""Substitutes for a model: titles, summaries and answers from the words of the conversations."""

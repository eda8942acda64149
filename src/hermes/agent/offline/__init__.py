"""What a model would write, without one: titles, summaries and answers from the words of the conversations."""

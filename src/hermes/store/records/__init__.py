"""Sessions and messages: the rows, and what is kept with them."""

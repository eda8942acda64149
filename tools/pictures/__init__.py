"""The pictures of the README and the documentation, made by running the program: `make pictures`."""

"""Does search find what people look for? A labelled set of conversations and questions, and the tests that hold search to it."""

"""Conversations that other programs kept: one file a program, each a format of `hermes.interop.formats`."""

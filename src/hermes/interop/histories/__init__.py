"""Conversations that other programs kept: one file per program, each a format of `hermes.interop.formats`."""

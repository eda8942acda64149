"""The record in a browser: `hermes web`. app.py has the routes, access.py who may ask, render.py what a message looks like."""

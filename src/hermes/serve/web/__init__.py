"""The record in a browser: `hermes web`. app.py has the routes, visitors.py who gets in, message_html.py a message as HTML."""

"""One HTTP engine, server and client, that the API server, the client, the router and the gateway stand on."""

"""Messages become ids and ids become messages: by the engine over HTTP, or here where that is proved equal."""

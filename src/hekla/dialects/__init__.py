"""Objects in, core models out: what each ecosystem's words mean to the engine. No I/O."""

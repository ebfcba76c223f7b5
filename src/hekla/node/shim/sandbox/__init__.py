"""What runs on the way into a sandbox: the zygote, the child that builds and locks it, and what packs its files. Standard library only."""

"""The nouns: one file per kind or family. CRDs, schemas and reference pages are generated from here."""

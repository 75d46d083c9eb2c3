"""Models of engines' prefix caches: what each answers, one request after another. They know no file format."""

// A target needs a source to precompile a header for others.

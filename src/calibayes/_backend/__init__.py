"""Infrastructure below the mathematics: compiled functions, random keys, linear algebra, devices and processes."""

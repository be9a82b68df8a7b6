"""Help for the tests of plugins. The fixtures come with the installed SDK, through pytest."""

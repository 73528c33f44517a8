"""Tests of the project; a package, so that test folders named like ours cannot hide ours."""

"""Experiments of Ahn, Korattikara, Welling 2012."""

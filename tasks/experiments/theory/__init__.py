"""The theorems of the papers, measured on targets with closed forms."""

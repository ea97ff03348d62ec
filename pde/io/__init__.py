"""Files of others read and written, and the file format of our data sets."""

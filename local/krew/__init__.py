"""The plug-in of kubectl as krew installs it (`make krew`)."""

"""What every law is compared with: what could have been done by one who knew the whole trace."""

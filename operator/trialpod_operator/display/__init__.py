"""Ways of showing a running experiment; `choose.choose_display` picks one. rich is imported only for tables."""

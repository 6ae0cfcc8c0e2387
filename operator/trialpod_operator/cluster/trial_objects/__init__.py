"""Objects of other kinds as attempts: built, watched together with their pods, shown as the attempt's pod."""

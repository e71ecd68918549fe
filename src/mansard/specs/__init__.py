"""What things are: models, hardware and number formats as pure data, with no computation beyond sizes."""

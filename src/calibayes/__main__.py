from calibayes.cli import app

app()

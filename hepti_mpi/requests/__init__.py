"""What is asked and what is answered: texts, images, files, standard input."""

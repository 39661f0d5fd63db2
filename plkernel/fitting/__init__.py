"""What plkernel.fit fits, from a number or a corpus, and how it tells what it found."""

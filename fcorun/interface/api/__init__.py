"""The Python interface: experiments of objects, and the records that they leave."""

"""Golden cases: they say by data what each operation must give, and judge any implementation by it.

Every case has a source that is not this project's reference, and names a planted wrong implementation that it rejects.
``python -m golden list`` shows them, ``python -m golden verify --against ...`` judges.
"""

__all__ = ["SPECIFICATION"]

SPECIFICATION = "0.4"
"""Version of the definitions that the cases pin; it rises when one of them changes, with an entry in CHANGELOG.md."""

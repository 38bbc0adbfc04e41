"""The environment in which transformers renders chat templates, for the scripts beside it.

Needs `pip install transformers`. The date is fixed, so that the same input gives the same bytes.
"""
import datetime

import transformers
import transformers.utils.chat_template_utils as chat_template_utils

NOW = datetime.datetime(2026, 7, 26, 9, 5, 7)


class FixedDatetime(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return NOW


chat_template_utils.datetime = FixedDatetime
MADE_BY = f"transformers {transformers.__version__}, jinja2 {chat_template_utils.jinja2.__version__}"


def render(template, variables):
    """What the template prints, or None when it raises."""
    try:
        return chat_template_utils._compile_jinja_template(template).render(**variables)
    except Exception:
        return None

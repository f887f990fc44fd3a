"""Hooks of schemathesis: no generated request may ask for more than a few tokens of text."""

import schemathesis

LIMITS = {"max_tokens": 8, "max_completion_tokens": 8, "max_output_tokens": 8, "n": 2, "best_of": 2}


@schemathesis.hook
def before_call(context, case, kwargs):
    """Lowers limits that are in the request, and adds one to the dialects in which it is optional."""
    if not isinstance(case.body, dict):
        return
    for name, limit in LIMITS.items():
        value = case.body.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and value > limit:
            case.body[name] = limit
    name = {"/v1/chat/completions": "max_tokens", "/v1/responses": "max_output_tokens"}.get(case.path)
    if name:
        case.body.setdefault(name, LIMITS[name])

"""Resources whose values stay if the configuration of a run sets others."""

from typing import Any, TypeVar

import dagster as dg
from pydantic import Field, create_model

ResourceT = TypeVar("ResourceT", bound=dg.ConfigurableResource[Any])


def with_defaults(kind: type[ResourceT], **values: str) -> ResourceT:
    """Return a resource of *kind* whose fields have *values* by default.

    Dagster replaces all values of an instance by the configuration of a run, even those that this leaves out.
    """
    fields: dict[str, Any] = {
        name: (str, Field(default=value, description=kind.model_fields[name].description))
        for name, value in values.items()
    }
    bound: type[ResourceT] = create_model(kind.__name__, __base__=kind, __doc__=kind.__doc__, **fields)
    return bound()

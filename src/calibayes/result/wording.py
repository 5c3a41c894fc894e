"""Describe weights, clusters, strata, blocks and reference categories in words, for summaries and reports."""

from typing import Any

from calibayes.bootstrap import Block, Cluster, Stratified

LABELS = ("observations", "categories")
"""Labels of the descriptions. Files store these texts as settings, because they do not store labels of clusters."""
_WEIGHTS = {"survey": "", "repetitions": " (frequency weights)"}
"""Remarks about the kinds of weights."""


def describe_data(settings: dict[str, Any]) -> dict[str, str]:
    """Return, by label, how the observations are weighted and resampled, and what the categories are compared with.

    A label is missing if there is nothing to say about it. The settings of a loaded result are texts, and contain the
    descriptions themselves.
    """
    columns, weights = settings.get("roles"), str(settings.get("weights")).strip("'")
    known = columns if isinstance(columns, dict) else {}
    column = lambda word, role: f" {word} {known[role]}" if role in known else ""
    phrases = [f"weighted{column('by', 'weights')}{_WEIGHTS[weights]}"] if weights in _WEIGHTS else []
    match settings.get("bootstrap"):
        case Block(length=length):
            phrases.append(f"resampled in blocks of {length:,} consecutive observations")
        case Cluster(n_groups=n_groups, sizes=sizes):
            strata = "" if sizes is None else f" within {len(sizes):,} strata{column('of', 'strata')}"
            phrases.append(f"resampled in {n_groups:,} clusters{column('of', 'cluster')}{strata}")
        case Stratified(sizes=sizes):
            phrases.append(f"resampled within {len(sizes):,} strata{column('of', 'strata')}")
    described = {"observations": " and ".join(phrases)} if phrases else {}
    references = settings.get("reference_categories")
    if references and isinstance(references, dict):
        described["categories"] = f"compared with: {', '.join(f'{name} = {one}' for name, one in references.items())}"
    return described | {label: str(settings[label]) for label in LABELS if label in settings}

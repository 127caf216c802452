"""Our layers beside PyG's on calls that hypothesis draws.

``--hypothesis-profile=deep`` draws thousands.
"""

import pytest
from conformance.cases import LAYERS, Case, cases
from conformance.run import check
from hypothesis import given, note
from hypothesis import strategies as st

import pyg_dfgnn.nn

OURS = [layer for layer in LAYERS if hasattr(pyg_dfgnn.nn, layer)]


@pytest.mark.parametrize("layer", OURS)
@given(data=st.data())
def test_layer(layer, device, data):
    case: Case = data.draw(cases(layer))
    note(repr(case))
    check(case, device)

"""A text to measure keys and values on: several kinds of writing, for a model's ordinary numbers. Written for this.

words = passage(tokenizer, 2048)      # ids [1, 2048]
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

TEXT = """The river had been low all summer, and by September the old ferry lay on the mud like a tired animal. Marta
walked down every morning to look at it. She was not sentimental about boats; she wanted to know whether the planks had
dried enough to be caulked. "Another week," she told her brother, who had not asked.

Question: A shop sells pencils in boxes of 12 and 30. How many ways are there to buy exactly 150 pencils? Answer: let a
be the small boxes and b the large ones; 12a + 30b = 150 means 2a + 5b = 25, so b is odd: b = 1, a = 10; b = 3, a = 5;
b = 5, a = 0. There are three ways.

def moving_average(values, width):
    total, result = 0.0, []
    for index, value in enumerate(values):
        total += value
        if index >= width:
            total -= values[index - width]
        result.append(total / min(index + 1, width))
    return result

Report of 14 March, station 7: wind 5.2 m/s from the north-west, temperature 3.8 °C, pressure 1009.6 hPa, visibility
good. Two buoys were replaced; serial numbers 4417-B and 4421-B. The pump failed at 03:40 and was restarted by hand.

Glass is made of sand, soda and lime. The soda lets the sand melt at a lower heat, and the lime keeps water from
dissolving what comes out. A little iron colours it green; manganese takes the green away again, which is why old window
panes sometimes turn faintly violet in the sun. Nobody knows who noticed this first.

Der Zug nach Norden fährt um 8:15 Uhr von Gleis 3. Bitte steigen Sie in Falkenau um. Le marché ferme à midi, mais la
boulangerie reste ouverte jusqu'à dix-neuf heures. La biblioteca abre los lunes y los jueves por la tarde.

- Boil four eggs for nine minutes, cool them, peel them.
- Chop two onions and fry them slowly until they are brown.
- Mash the yolks with the onions, salt, pepper, and a spoon of mustard.
- Fill the halves and let them stand in the cold for an hour.

{"id": 90312, "name": "northern lamp", "tags": ["iron", "oil", "hook"], "price": 74.5, "stock": {"A": 3, "B": 0}}

User: The picture shows a red square left of a blue circle. Which is larger? Assistant: The circle is larger;
its diameter is about a fifth more than the side of the square. User: And what is between them? Assistant: Nothing but
the white background, with a thin grey shadow under the circle.

Whoever keeps bees learns to move slowly. A hive is a noise before it is anything else: a low hum when all is well, a
thinner one when the queen is gone. In spring the first flights are short, and the snow around the box is dotted with
yellow. By June one stops counting. In the evening, when the heat leaves the wall, the old ones sit at the entrance and
fan, and the smell of wax and clover drifts over the garden as far as the road.
"""


def passage(tokenizer: Any, tokens: int) -> Tensor:
    """The text's ids [1, tokens]; told again, each time after another number, until there are enough."""
    found: list[int] = []
    turn = 0
    while len(found) < tokens:
        turn += 1
        found += list(tokenizer(f"Part {turn}.\n\n{TEXT}\n", add_special_tokens=turn == 1)["input_ids"])
    return torch.tensor([found[:tokens]])

"""How pictures look: colours, dashes and marks that tell lines apart, in print and for colour-blind readers."""

from typing import Any

# Okabe and Ito's colours, which colour-blind readers can tell apart, darkest first; dashes and marks do for print.
OKABE_ITO = ("#000000", "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00")
COLOURS = (*OKABE_ITO, "#332288", "#882255", "#999933", "#777777", "#8C510A", "#44AA99")  # more, for plots of many
DASHES = ("-", "--", "-.", (0, (1, 1)), (0, (6, 1, 1, 1, 1, 1)))
MARKS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "*")
STYLE: Any = {
    "font.size": 10,
    "svg.fonttype": "none",
    "text.parse_math": False,  # a trace or server whose name has a $ in it
    "axes.spines.top": False,
    "axes.spines.right": False,
}

"""What a matplotlib figure shows, asked of its own objects."""

from itertools import combinations

from matplotlib.text import Text


def drawn_by(monkeypatch, module):
    """Return the list that gets every figure which a module draws, instead of a file."""
    figures = []
    monkeypatch.setattr(module, "save_figure", lambda figure, path: figures.append(figure))
    return figures


def texts(figure):
    """Return all texts that can be seen."""
    axes_of = [axis for axes in figure.axes for axis in (axes.xaxis, axes.yaxis)]
    ticks = [(tick, axis.get_view_interval()) for axis in axes_of for tick in (*axis.majorTicks, *axis.minorTicks)]
    beyond = {tick.label1 for tick, ends in ticks if not min(ends) <= tick.get_loc() <= max(ends)}
    found = figure.findobj(Text)
    return [text for text in found if text.get_text().strip() and text.get_visible() and text not in beyond]


def words(figure):
    return {text.get_text() for text in texts(figure)}


def legend(figure):
    return [text.get_text() for found in figure.legends for text in found.get_texts()]


def check_readable(figure):
    """Assert that all text is within the picture, none over another, and the legend beside the data."""
    figure.draw_without_rendering()
    boxes = {text: text.get_window_extent() for text in texts(figure)}
    width, height = figure.bbox.size
    for text, box in boxes.items():
        assert min(box.x0, box.y0) > -1, text
        assert box.x1 < width + 1, text
        assert box.y1 < height + 1, text
    # Of slanted ones the boxes overlap where the letters do not.
    level = [(text, box.padded(-1)) for text, box in boxes.items() if not text.get_rotation() % 90]
    for (one, box), (other, beside) in combinations(level, 2):
        assert not box.overlaps(beside), (one, other)
    for found in figure.legends:
        for axes in figure.axes:
            assert not found.get_window_extent().overlaps(axes.bbox.padded(-1))

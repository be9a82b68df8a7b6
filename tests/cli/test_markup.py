"""What others named is printed as it is: square brackets in it are no markup."""

from __future__ import annotations


def test_list_shows_names_with_brackets_as_they_are(plugin_site):
    plugin_site.add(
        "acme-odd", rewards={"odd[bold]": "acme_odd", "odd[/x]": "acme_odd"}, version="1.0[red]"
    )
    done = plugin_site.run("list")
    assert done.returncode == 0, done.stderr
    for text in ("odd[bold]", "odd[/x]", "1.0[red]"):
        assert text in done.stdout

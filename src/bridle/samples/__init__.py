"""From a session's turn tree to training rows: the sample, built, credited, recorded and checked from outside.

The table of builders by name; a user's own "my.module:function" works wherever a name does.
"""

BUILDERS = {
    "tree": "bridle.samples.tree:tree",
    "per_request": "bridle.samples.per_request:per_request",
    "prefix_merging": "bridle.samples.prefix_merging:prefix_merging",
    "prefix_merging_first_user": "bridle.samples.prefix_merging:prefix_merging_first_user",
    "final_only": "bridle.samples.final_only:final_only",
}

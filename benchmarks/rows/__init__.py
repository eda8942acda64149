"""The rows of the table, by what they are about; each function here measures one group and returns its
section.
"""

"""A plugin for npucoll, written as its documentation says, with nothing but public names."""

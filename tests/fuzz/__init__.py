"""Damages and alters files of every format that is read: nothing but a result or one clear error may come of it.

    PYTHONPATH=tests python -m fuzz --count 100000 --seed 1                # that many files of all readers together
    PYTHONPATH=tests python -m fuzz --count 5000 --reader onnx
    PYTHONPATH=tests python -m fuzz --count 1000000 --slice 3/20 --convert none
    PYTHONPATH=tests python -m fuzz --reader onnx --seed 1 --only 4711 --keep /tmp/4711

Seeds are small files, one or more for each operator. A part of the files hold one operator with random inputs and attributes
(random_operators.py); the others are mutations of seeds: a mutation flips bytes, cuts, or changes what a file says: a number, a type, a
name, an order, a length. Every file is read in a worker that has LIMIT_S seconds of computing and 20 times the file plus 200 MB of memory;
what is read is converted (--convert), and what was written is read again. A finding is an exception that is no QConvertError, an error
whose code docs/exit-codes.md does not list, a signal, a limit passed, a result that cannot be read, or a file left behind.
"""

// The source of the code in thunks.py for arm64, where the two functions are described. A test assembles it and compares.
    .text
fcntl_thunk:                            // (w0: descriptor, w1: command, x2: struct flock)
    sub     w8, w1, #5                  // F_GETLK, F_SETLK, F_SETLKW are 5, 6, 7
    cmp     w8, #2
    b.hi    plain
    lsr     w8, w0, #16
    cbnz    w8, plain
    ldr     x9, table
    ldr     w10, [x9, w0, uxtw #2]
    ldr     x11, [x2, #8]               // l_start: SQLite's locks on a database begin at 0x40000000
    mov     w12, #0x40000000
    cmp     x11, x12
    b.ge    database
    cmn     w10, #3
    b.eq    plain
    cbnz    w10, description
    mov     w11, #-1
    str     w11, [x9, w0, uxtw #2]
    b       description
database:
    cmp     w10, #0
    b.le    plain
    mov     w0, w10
description:
    str     wzr, [x2, #24]              // l_pid must be 0
    add     w1, w1, #31                 // F_OFD_GETLK, F_OFD_SETLK, F_OFD_SETLKW are 36, 37, 38
plain:
    ldr     x16, real_fcntl
    br      x16
close_thunk:                            // (w0: descriptor)
    lsr     w8, w0, #16
    cbnz    w8, really
    ldr     x9, table
    ldr     w10, [x9, w0, uxtw #2]
    str     wzr, [x9, w0, uxtw #2]
    cmp     w10, #0
    b.gt    park
    cmn     w10, #2
    b.eq    park
really:
    ldr     x16, real_close
    br      x16
park:
    ldr     x9, parked
    mov     w8, #1
    strb    w8, [x9, w0, uxtw]
    mov     w0, #0
    ret
table:
    .quad   0
parked:
    .quad   0
real_fcntl:
    .quad   0
real_close:
    .quad   0

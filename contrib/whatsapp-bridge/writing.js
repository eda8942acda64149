// What the gateway sends, as baileys takes it.

// The content of a message with a file: shown where WhatsApp shows it, else a document.
export function contentOf (about, data) {
  const caption = about.caption || undefined
  if (about.kind === 'image' && /^image\/(jpeg|png)$/.test(about.mime)) return { image: data, mimetype: about.mime, caption }
  if (about.kind === 'video' && about.mime === 'video/mp4') return { video: data, mimetype: about.mime, caption }
  if (about.kind === 'audio' && !caption) return { audio: data, mimetype: about.mime, ptt: about.mime.startsWith('audio/ogg') }
  return { document: data, mimetype: about.mime || 'application/octet-stream', fileName: about.name, caption }
}

// The message that a reply quotes. `me` is our own account.
export function quotedOf (chat, quote, me) {
  const bare = jid => jid.split('@')[0].split(':')[0]
  const own = quote.sender && me && bare(quote.sender) === bare(me.id)
  const participant = chat.endsWith('@g.us') ? quote.sender : undefined
  return { key: { remoteJid: chat, id: quote.id, fromMe: Boolean(own), participant }, message: { conversation: quote.text || '' } }
}

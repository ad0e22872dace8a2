// Search without a server: a browser refuses a Worker to a page that is opened as a file, so a hidden frame runs its script.
class IFrameWorker extends EventTarget {
  constructor(url) {
    super()
    this.frame = document.createElement("iframe")
    this.frame.hidden = true
    document.body.append(this.frame)
    const inside = this.frame.contentWindow
    inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data: structuredClone(data) }))
    inside.importScripts = async (...urls) => {
      for (const source of urls) await load(inside.document, source)
    }
    this.ready = load(inside.document, url)
  }

  async postMessage(data) {
    await this.ready
    this.frame.contentWindow.dispatchEvent(new MessageEvent("message", { data: structuredClone(data) }))
  }

  terminate() {
    this.frame.remove()
  }
}

function load(page, source) {
  return new Promise((resolve, reject) => {
    const script = page.createElement("script")
    script.onload = resolve
    script.onerror = () => reject(new Error(`cannot load ${source}`))
    script.src = source
    page.body.append(script)
  })
}

window.IFrameWorker = IFrameWorker // the search script looks for its languages beside it
if (location.protocol === "file:") window.Worker = IFrameWorker
